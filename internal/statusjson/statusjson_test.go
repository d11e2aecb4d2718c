package statusjson_test

import (
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/internal/statusjson"
	statusv1 "github.com/millrace/millrace/proto/millrace/status/v1"
)

func TestIntegersAreNumbersAndProtobufReadsItBack(t *testing.T) {
	s := &statusv1.GetStatusResponse{
		Version: "v1", Term: 1 << 60,
		Jobs:    []*statusv1.Job{{Name: "train", Steps: -1, Ranks: []*statusv1.Rank{{Rank: 3, State: "joined"}}}},
		Workers: []*statusv1.Worker{{Name: "w", Slots: map[string]uint32{"cpu": 2}, BudgetBytes: 5}},
	}
	text, err := statusjson.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	again := &statusv1.GetStatusResponse{}
	if err := protojson.Unmarshal(text, again); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	if !proto.Equal(s, again) {
		t.Errorf("came back as %v", again)
	}
	small, err := statusjson.Marshal(&statusv1.Rank{Rank: 1, Step: 7})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(small), `{"epoch":0,"peer":0,"rank":1,"sidecar":"","state":"","step":7}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
