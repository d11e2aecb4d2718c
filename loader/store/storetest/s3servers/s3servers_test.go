package s3servers_test

import (
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/store/storetest/s3servers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAServerThatEndsIsAnError(t *testing.T) {
	if _, err := s3servers.GoFakeS3(t.Context(), "/bin/false", "b"); err == nil || !strings.Contains(err.Error(), "it ended") {
		t.Errorf("%v, want that it ended", err)
	}
	if _, err := s3servers.GoFakeS3(t.Context(), filepath.Join(t.TempDir(), "none"), "b"); errkind.Of(err) != errkind.NotFound {
		t.Errorf("%v, want NotFound", err)
	}
}
