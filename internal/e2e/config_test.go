package e2e

import (
	"regexp"
	"testing"
)

// slotsOf is what a role says of its workers' slots, once they have joined.
func slotsOf(p *place, endpoint string) string {
	p.t.Helper()
	var found []string
	eventually(p.t, patience, "a worker", func() bool {
		found = regexp.MustCompile(`(\d+) cpu`).FindStringSubmatch(p.must("status", "--endpoint", endpoint))
		return found != nil
	})
	return found[1]
}

func TestFlagsWinOverTheEnvironmentAndThatOverTheFile(t *testing.T) {
	p := newPlace(t)
	config := p.write("local.yaml", "socket: "+p.path("s")+"\ncpu_slots: 3\nworker-budget: 32MiB\n")
	endpoint := "unix://" + p.path("s")
	for _, c := range []struct {
		what      string
		env, args []string
		slots     string
	}{
		{"file", nil, []string{"--config", config}, "3"},
		{"environment over file", []string{"MILLRACE_CPU_SLOTS=4"}, []string{"--config", config}, "4"},
		{"flag over both", []string{"MILLRACE_CPU_SLOTS=4"}, []string{"--config", config, "--cpu-slots", "5"}, "5"},
		{"file named by the environment", []string{"MILLRACE_CONFIG=" + config}, nil, "3"},
	} {
		r := p.startWith(c.env, millrace(), append([]string{"local"}, c.args...)...)
		if got := slotsOf(p, endpoint); got != c.slots {
			t.Errorf("%s: %s slots, want %s", c.what, got, c.slots)
		}
		matches(t, p.must("status", "--endpoint", endpoint), `0 B of 33.6 MB`)
		r.stop()
	}
}

func TestSidecarsReadTheirConfigurationAlike(t *testing.T) {
	p := newPlace(t)
	config := p.write("sidecar.yaml", "dispatcher: 127.0.0.1:1\nlisten: [\"unix://"+p.path("a")+"\", \"127.0.0.1:0\"]\nname: of-file\n")
	for _, c := range [][]string{{millrace(), "sidecar"}, {sidecar()}} {
		args := append(c[1:], "--config", config)
		r := p.start(c[0], args...)
		expect(t, r.ready, map[string]any{"role": "sidecar", "name": "of-file"})
		if r.address(0) != "unix://"+p.path("a") || !regexp.MustCompile(`^127\.0\.0\.1:[1-9]\d*$`).MatchString(r.address(1)) {
			t.Errorf("it listens at %v", r.ready["addresses"])
		}
		r.stop()
		r = p.startWith([]string{"MILLRACE_NAME=of-environment"}, c[0], args...)
		expect(t, r.ready, map[string]any{"name": "of-environment"})
		r.stop()
		r = p.startWith([]string{"MILLRACE_NAME=of-environment"}, c[0], append(args, "--name", "of-flag")...)
		expect(t, r.ready, map[string]any{"name": "of-flag"})
		r.stop()
	}
}

func TestMistakesInAConfiguration(t *testing.T) {
	p := newPlace(t)
	misspelt := p.write("misspelt.yaml", "sockt: /s\n")
	list := p.write("list.yaml", "- socket\n")
	wrong := p.write("wrong.yaml", "socket: /s\ncpu_slots: many\n")
	small := p.write("small.yaml", "dispatchr: 127.0.0.1:1\n")
	check(t, p, millrace(), []mistake{
		{name: "unknown key", args: []string{"local", "--config", misspelt}, code: 2, says: `configuration /.*/misspelt.yaml: unknown key "sockt"; did you mean "socket"\?`},
		{name: "no file", args: []string{"local", "--config", "nowhere.yaml"}, code: 2, says: `configuration nowhere.yaml does not exist`},
		{name: "no mapping", args: []string{"local", "--config", list}, code: 2, says: `configuration /.*/list.yaml is not a YAML mapping: .*`},
		{name: "wrong value in the file", args: []string{"local", "--config", wrong}, code: 2, says: `configuration /.*/wrong.yaml: cpu_slots: .*"many".*`},
		{name: "wrong value in the environment", args: []string{"local", "--socket", "s"}, env: []string{"MILLRACE_CPU_SLOTS=many"}, code: 2, says: `MILLRACE_CPU_SLOTS="many": .*`},
	})
	check(t, p, sidecar(), []mistake{
		{name: "small binary, unknown key", args: []string{"--config", small}, code: 2, says: `configuration /.*/small.yaml: unknown key "dispatchr"; did you mean "dispatcher"\?`},
	})
}
