package s3store

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go/logging"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/loader/store"
	"github.com/millrace/millrace/loader/store/ranged"
)

// Options say where buckets are and who asks. A zero value stands for what the AWS SDK finds in its own environment
// variables and files.
type Options struct {
	// Endpoint is the URL of a server that speaks S3.
	Endpoint string
	// Region is that of the buckets; where none is known, that of the bucket is found out.
	Region string
	// Profile is one of the AWS configuration files.
	Profile string
	// Anonymous asks without credentials.
	Anonymous bool
	// VirtualHost puts the bucket into the host name even where Endpoint is set; without, it goes into the path there.
	VirtualHost bool
	// RequesterPays agrees to pay for requests.
	RequesterPays bool
	// Read bounds reading, of each bucket by itself.
	Read ranged.Options
}

// merged is o with what the URI of a bucket says: names are those of [store.BucketOptions].
func (o Options) merged(values url.Values) (Options, error) {
	for name := range values {
		value := values.Get(name)
		var flag *bool
		switch name {
		case "endpoint":
			o.Endpoint = value
		case "region":
			o.Region = value
		case "profile":
			o.Profile = value
		case "anonymous":
			flag = &o.Anonymous
		case "virtual_host":
			flag = &o.VirtualHost
		case "requester_pays":
			flag = &o.RequesterPays
		}
		if flag != nil {
			on, err := strconv.ParseBool(value)
			if err != nil {
				return o, errkind.Errorf(errkind.Invalid, "option %s=%s of an s3:// URI: write true or false", name, value)
			}
			*flag = on
		}
	}
	if o.Endpoint == "" {
		return o, nil
	}
	if u, err := url.Parse(o.Endpoint); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return o, errkind.Errorf(errkind.Invalid, "S3 endpoint %q: write http://host:port or https://host", o.Endpoint)
	}
	return o, nil
}

// Stores opens buckets. Those with the same options share connections and credentials.
type Stores struct {
	opts Options

	mu     sync.Mutex
	shared map[connection]*shared
}

// connection is what tells shared apart.
type connection struct {
	endpoint, region, profile string
	anonymous, virtualHost    bool
}

// shared is what buckets with the same options have in common.
type shared struct {
	client    *s3.Client
	identity  *identity
	transport *http.Transport
	http      *redirecting
}

// New is what opens buckets by opts, where their URIs do not say otherwise.
func New(opts Options) *Stores {
	return &Stores{opts: opts, shared: map[connection]*shared{}}
}

// Open is the store.OpenFunc of the scheme "s3".
func (s *Stores) Open(ctx context.Context, authority string) (store.Bucket, error) {
	return s.Bucket(ctx, authority)
}

// Bucket is the bucket of that name, which may be followed by options as [store.Canonical] writes them.
func (s *Stores) Bucket(ctx context.Context, authority string) (*Bucket, error) {
	name, values, err := store.BucketOptions(authority)
	if err != nil {
		return nil, err
	}
	o, err := s.opts.merged(values)
	if err != nil {
		return nil, err
	}
	shared, err := s.connect(ctx, o)
	if err != nil {
		return nil, err
	}
	b := &Bucket{name: name, client: shared.client, identity: shared.identity, transport: shared.transport, http: shared.http, signer: v4.NewSigner()}
	if o.RequesterPays {
		b.payer = types.RequestPayerRequester
	}
	o.Read.Name = b.uri
	b.Reader = ranged.New(b, o.Read)
	return b, nil
}

// renewAhead is how long before their end credentials are fetched again.
const renewAhead = 5 * time.Minute

func (s *Stores) connect(ctx context.Context, o Options) (*shared, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := connection{o.Endpoint, o.Region, o.Profile, o.Anonymous, o.VirtualHost}
	if found := s.shared[key]; found != nil {
		return found, nil
	}
	client := awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) { ranged.Pool(t, o.Read.InFlight) })
	load := []func(*config.LoadOptions) error{
		config.WithHTTPClient(client), // so that AWS_CA_BUNDLE is heeded
		config.WithCredentialsCacheOptions(func(c *aws.CredentialsCacheOptions) { c.ExpiryWindow, c.ExpiryWindowJitterFrac = renewAhead, 0.5 }),
		config.WithRetryer(func() aws.Retryer { return aws.NopRetryer{} }),
		config.WithRequestChecksumCalculation(aws.RequestChecksumCalculationWhenRequired),
		config.WithResponseChecksumValidation(aws.ResponseChecksumValidationWhenRequired),
	}
	if o.Region != "" {
		load = append(load, config.WithRegion(o.Region))
	}
	if o.Profile != "" {
		load = append(load, config.WithSharedConfigProfile(o.Profile))
	}
	if o.Anonymous {
		load = append(load, config.WithCredentialsProvider(aws.AnonymousCredentials{}))
	}
	cfg, err := config.LoadDefaultConfig(ctx, load...)
	if err != nil {
		return nil, errkind.Errorf(errkind.Invalid, "reading the AWS configuration: %w", err)
	}
	out, err := connected(o, cfg)
	if err == nil {
		s.shared[key] = out
	}
	return out, err
}

func connected(o Options, cfg aws.Config) (*shared, error) {
	buildable, ok := cfg.HTTPClient.(*awshttp.BuildableClient)
	if !ok {
		return nil, errkind.Errorf(errkind.Internal, "the AWS SDK has replaced its HTTP client by a %T", cfg.HTTPClient)
	}
	if cfg.Region == "" {
		cfg.Region = "us-east-1" // Buckets elsewhere say so.
	}
	out := &shared{identity: &identity{anonymous: o.Anonymous}, transport: buildable.GetTransport()}
	if !o.Anonymous {
		cache, ok := cfg.Credentials.(*aws.CredentialsCache)
		if !ok {
			cache = aws.NewCredentialsCache(cfg.Credentials)
		}
		cfg.Credentials, out.identity.cache = cache, cache
	}
	out.http = &redirecting{transport: out.transport, identity: out.identity, region: cfg.Region}
	out.client = s3.NewFromConfig(cfg, func(s *s3.Options) {
		s.HTTPClient = out.http
		if o.Endpoint != "" {
			s.BaseEndpoint = aws.String(strings.TrimRight(o.Endpoint, "/"))
		}
		s.UsePathStyle = s.BaseEndpoint != nil && !o.VirtualHost
		s.DisableLogOutputChecksumValidationSkipped = true
		s.Logger = logging.Nop{} // What it would say is in the errors.
	})
	return out, nil
}
