// Package scenario runs the benchmarks of Millrace. Each scenario measures a whole system as a user would run it,
// beside a peer on the same data and cores, in turns, and gives one result of named figures.
package scenario

// Scenario is a benchmark that can be run by name.
type Scenario struct {
	// Name is what it is called on the command line and in results.
	Name string
	// About says in one line what it measures.
	About string
}

// NameE2E is the scenario that RunE2E runs.
const NameE2E = "e2e"

// All lists the scenarios.
func All() []Scenario {
	return []Scenario{
		{Name: NameE2E, About: "random-resized 224² uint8 crops of JPEGs in batches of 64 to one Python consumer, beside torch's DataLoader"},
	}
}
