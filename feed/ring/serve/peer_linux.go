package serve

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/errkind"
)

// checkPeer lets nobody in but the user whom the sidecar runs as, and root.
func checkPeer(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return fmt.Errorf("asking who has connected: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return fmt.Errorf("asking who has connected: %w", err)
	}
	if credErr != nil {
		return fmt.Errorf("asking who has connected: %w", credErr)
	}
	if uid := unix.Getuid(); cred.Uid != 0 && int(cred.Uid) != uid {
		return errkind.Errorf(errkind.Invalid, "user %d has connected to the sidecar of user %d", cred.Uid, uid)
	}
	return nil
}
