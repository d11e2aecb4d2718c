package grpcerr_test

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/internal/grpcerr"
)

func TestKindAndTextSurviveTheWire(t *testing.T) {
	for k := errkind.Invalid; k <= errkind.Canceled; k++ {
		sent := fmt.Errorf("job resnet: %w", errkind.Errorf(k, "it broke [at row 3]"))
		wire := grpcerr.ToStatus(sent)
		if got, want := status.Code(wire), grpcerr.Code(k); got != want {
			t.Errorf("%v: code %v, want %v", k, got, want)
		}
		got := grpcerr.FromStatus(wire)
		if errkind.Of(got) != k || got.Error() != sent.Error() {
			t.Errorf("%v: arrived as %v, %q", k, errkind.Of(got), got)
		}
		if again := grpcerr.ToStatus(got); status.Code(again) != grpcerr.Code(k) {
			t.Errorf("%v: second hop has code %v", k, status.Code(again))
		}
	}
}

func TestForeignStatusesGetTheNearestKind(t *testing.T) {
	for code, want := range map[codes.Code]errkind.Kind{
		codes.Unavailable:      errkind.Unavailable,
		codes.DeadlineExceeded: errkind.Canceled,
		codes.AlreadyExists:    errkind.Unknown,
	} {
		if got := errkind.Of(grpcerr.FromStatus(status.Error(code, "x"))); got != want {
			t.Errorf("%v: kind %v, want %v", code, got, want)
		}
	}
	if grpcerr.ToStatus(nil) != nil || grpcerr.FromStatus(nil) != nil {
		t.Error("nil does not stay nil")
	}
	plain := errors.New("plain")
	if status.Code(grpcerr.ToStatus(plain)) != codes.Unknown {
		t.Error("an error without a kind is not code Unknown")
	}
}
