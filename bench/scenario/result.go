package scenario

import "runtime"

// Result is the outcome of the scenario e2e. Without a prefix figures are Millrace's; each is the median over the rounds.
type Result struct {
	Scenario          string  `json:"scenario"`
	ImagesPerSecond   float64 `json:"images_per_s"`
	CPUPer1000        float64 `json:"cpu_s_per_1000"`
	WaitFraction      float64 `json:"wait_fraction"`
	PeakPSSMiB        float64 `json:"peak_pss_mb"`
	FirstBatchSeconds float64 `json:"first_batch_s"`
	Peer              string  `json:"peer"`
	PeerImagesPerS    float64 `json:"peer_images_per_s"`
	PeerCPUPer1000    float64 `json:"peer_cpu_s_per_1000"`
	PeerWaitFraction  float64 `json:"peer_wait_fraction"`
	PeerPeakPSSMiB    float64 `json:"peer_peak_pss_mb"`
	PeerFirstBatch    float64 `json:"peer_first_batch_s"`
	// Ratio is the median of Millrace's images per second by that of the peer's.
	Ratio float64 `json:"ratio"`
	// Spread has the smallest and the largest value of each figure over the rounds.
	Spread map[string]Range `json:"spread"`
	// Quiet says that nothing else kept the machine busy in any window; figures that were not quiet mean little.
	Quiet  bool    `json:"quiet"`
	Rounds []Round `json:"rounds"`
	Config Config  `json:"config"`
}

// Config is what somebody needs to know to get the same figures.
type Config struct {
	Batch         int            `json:"batch"`
	Size          int            `json:"size"`
	Rounds        int            `json:"rounds"`
	WindowSeconds float64        `json:"window_s"`
	WarmUpSeconds float64        `json:"warm_up_s"`
	Data          DataSummary    `json:"data"`
	Restarts      bool           `json:"restarts"`
	Workers       int            `json:"workers"`
	PeerPrefetch  int            `json:"peer_prefetch_factor"`
	Host          Host           `json:"host"`
	Versions      map[string]any `json:"versions"`
}

// Round is one turn of each side.
type Round struct {
	Ours Turn `json:"millrace"`
	Peer Turn `json:"peer"`
}

// figure is one number of a turn.
type figure struct {
	name   string
	digits int
	of     func(*Turn) float64
}

func newResult(c *E2E, versions map[string]any, rounds []Round) *Result {
	versions["millrace_binary"], versions["go"] = c.Version, runtime.Version()
	r := &Result{
		Scenario: NameE2E, Peer: c.Peer, Spread: map[string]Range{}, Quiet: true, Rounds: rounds,
		Config: Config{
			Batch: batchRows, Size: imageSize, Rounds: c.Rounds, WindowSeconds: c.Window.Seconds(),
			WarmUpSeconds: c.WarmUp.Seconds(), Data: c.Data.Summary, Restarts: c.Restarts, Workers: c.Workers, PeerPrefetch: peerPrefetch,
			Host: thisHost(), Versions: versions,
		},
	}
	for _, f := range []struct {
		figure
		ours, peer *float64
	}{
		{figure{"images_per_s", 1, (*Turn).imagesPerSecond}, &r.ImagesPerSecond, &r.PeerImagesPerS},
		{figure{"cpu_s_per_1000", 3, (*Turn).cpuPer1000}, &r.CPUPer1000, &r.PeerCPUPer1000},
		{figure{"wait_fraction", 4, (*Turn).waitFraction}, &r.WaitFraction, &r.PeerWaitFraction},
		{figure{"peak_pss_mb", 1, (*Turn).peakMiB}, &r.PeakPSSMiB, &r.PeerPeakPSSMiB},
		{figure{"first_batch_s", 3, func(t *Turn) float64 { return t.FirstBatchSeconds }}, &r.FirstBatchSeconds, &r.PeerFirstBatch},
	} {
		ours := collect(rounds, func(x *Round) float64 { return f.of(&x.Ours) })
		peer := collect(rounds, func(x *Round) float64 { return f.of(&x.Peer) })
		*f.ours, *f.peer = rounded(median(ours), f.digits), rounded(median(peer), f.digits)
		r.Spread[f.name], r.Spread["peer_"+f.name] = rangeOf(ours, f.digits), rangeOf(peer, f.digits)
	}
	rate := func(t *Turn) float64 { return t.imagesPerSecond() }
	ours := collect(rounds, func(x *Round) float64 { return rate(&x.Ours) })
	peer := collect(rounds, func(x *Round) float64 { return rate(&x.Peer) })
	r.Ratio = rounded(median(ours)/median(peer), 3)
	r.Spread["ratio"] = rangeOf(collect(rounds, func(x *Round) float64 { return rate(&x.Ours) / rate(&x.Peer) }), 3)
	for _, x := range rounds {
		r.Quiet = r.Quiet && x.Ours.OtherCores <= quiet && x.Peer.OtherCores <= quiet
	}
	return r
}

func collect(rounds []Round, of func(*Round) float64) []float64 {
	values := make([]float64, len(rounds))
	for i := range rounds {
		values[i] = of(&rounds[i])
	}
	return values
}
