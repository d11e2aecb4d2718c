// Package e2e tests Millrace as a user meets it: the real binaries as processes, with their arguments, exit codes,
// sockets and signals. MILLRACE_BIN names bin/millrace; bin/millrace-sidecar lies beside it. `make e2e` builds both.
package e2e
