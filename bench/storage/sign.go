package storage

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"time"

	"github.com/millrace/millrace/loader/store/storetest/s3servers"
)

// sign signs a request without query, as version 4 of AWS's signatures has it, so that a download needs nothing but net/http.
func sign(r *http.Request, now time.Time) {
	const payload, region = "UNSIGNED-PAYLOAD", "us-east-1"
	stamp := now.UTC().Format("20060102T150405Z")
	day := stamp[:8]
	r.Header.Set("X-Amz-Date", stamp)
	r.Header.Set("X-Amz-Content-Sha256", payload)
	const signed = "host;x-amz-content-sha256;x-amz-date"
	canonical := r.Method + "\n" + r.URL.EscapedPath() + "\n\nhost:" + r.URL.Host + "\nx-amz-content-sha256:" + payload + "\nx-amz-date:" + stamp + "\n\n" + signed + "\n" + payload
	scope := day + "/" + region + "/s3/aws4_request"
	sum := sha256.Sum256([]byte(canonical))
	key := []byte("AWS4" + s3servers.SecretKey)
	for _, part := range []string{day, region, "s3", "aws4_request", "AWS4-HMAC-SHA256\n" + stamp + "\n" + scope + "\n" + hex.EncodeToString(sum[:])} {
		h := hmac.New(sha256.New, key)
		_, _ = h.Write([]byte(part)) // a hash takes all
		key = h.Sum(nil)
	}
	r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+s3servers.AccessKey+"/"+scope+", SignedHeaders="+signed+", Signature="+hex.EncodeToString(key))
}
