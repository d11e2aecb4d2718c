package partition

import (
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/errkind"
	"github.com/millrace/millrace/preprocess/lineage"
)

// numbers is a partition of n rows that hold 0 to n-1.
func numbers(mem memory.Allocator, id lineage.ID, attempt uint32, n int) *Partition {
	values := make([]any, n)
	for i := range values {
		values[i] = int64(i)
	}
	rec := table{{field: arrow.Field{Name: "n", Type: arrow.PrimitiveTypes.Int64}, values: values}}.build(mem, 0, n)
	defer rec.Release()
	return New(id, attempt, rec)
}

func TestStoreCountsWhatIsInMemory(t *testing.T) {
	type key struct {
		job string
		id  lineage.ID
	}
	rapid.Check(t, func(t *rapid.T) {
		mem := memory.NewCheckedAllocator(memory.DefaultAllocator)
		defer mem.AssertSize(t, 0)
		put, freed := map[key]int64{}, map[key]int64{}
		store := NewStore("w1", Hooks{Freed: func(job string, id lineage.ID, bytes int64, _ bool) { freed[key{job, id}] += bytes }})
		type model struct {
			attempt    uint32
			generation uint64
			bytes      int64
		}
		want := map[key]model{}
		var reading []*Partition
		readBytes := map[*Partition]int64{}
		job := rapid.SampledFrom([]string{"a", "b"})
		id := rapid.Custom(func(t *rapid.T) lineage.ID { return lineage.SourceID(0, uint64(rapid.IntRange(0, 3).Draw(t, "p"))) })
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				k := key{job.Draw(t, "job"), id.Draw(t, "id")}
				m := model{attempt: rapid.Uint32Range(1, 3).Draw(t, "attempt"), generation: rapid.Uint64Range(0, 2).Draw(t, "generation")}
				p := numbers(mem, k.id, m.attempt, rapid.IntRange(1, 9).Draw(t, "rows"))
				m.bytes = p.Bytes()
				put[k] += m.bytes
				old, exists := want[k]
				if stored := store.Put(k.job, m.generation, p); stored != (!exists || m.attempt > old.attempt) {
					t.Fatalf("attempt %d over %d: stored = %v", m.attempt, old.attempt, stored)
				} else if stored {
					want[k] = m
				}
			},
			"acquire": func(t *rapid.T) {
				k, attempt := key{job.Draw(t, "job"), id.Draw(t, "id")}, rapid.Uint32Range(1, 3).Draw(t, "attempt")
				p, err := store.Acquire(k.job, k.id, attempt)
				if m, exists := want[k]; (err == nil) != (exists && m.attempt == attempt) {
					t.Fatalf("acquire %v: %v", k, err)
				}
				if err != nil {
					if errkind.Of(err) != errkind.NotFound {
						t.Fatal(err)
					}
					return
				}
				reading = append(reading, p)
				readBytes[p] = p.Bytes()
			},
			"stop reading": func(t *rapid.T) {
				if len(reading) == 0 {
					return
				}
				reading[0].Release()
				reading = reading[1:]
			},
			"free": func(t *rapid.T) {
				k := key{job.Draw(t, "job"), id.Draw(t, "id")}
				store.Free(k.job, k.id, lineage.SourceID(9, 9))
				delete(want, k)
			},
			"drop job": func(t *rapid.T) {
				j := job.Draw(t, "job")
				store.DropJob(j)
				for k := range want {
					if k.job == j {
						delete(want, k)
					}
				}
			},
			"drop below": func(t *rapid.T) {
				j, generation := job.Draw(t, "job"), rapid.Uint64Range(0, 2).Draw(t, "generation")
				store.DropBelow(j, generation)
				for k, m := range want {
					if k.job == j && m.generation < generation {
						delete(want, k)
					}
				}
			},
			"": func(t *rapid.T) {
				held := int64(0)
				for _, m := range want {
					held += m.bytes
				}
				live := held
				seen := map[*Partition]bool{}
				for _, p := range reading {
					if found, err := store.Acquire("a", p.ID(), p.Attempt()); err == nil {
						same := found == p
						found.Release()
						if same {
							continue
						}
					}
					if found, err := store.Acquire("b", p.ID(), p.Attempt()); err == nil {
						same := found == p
						found.Release()
						if same {
							continue
						}
					}
					if !seen[p] {
						seen[p] = true
						live += readBytes[p]
					}
				}
				stats := store.Stats()
				if stats.HeldBytes != held || stats.Partitions != len(want) || stats.LiveBytes != live {
					t.Fatalf("store counts %+v; held are %d bytes of %d partitions, in memory %d", stats, held, len(want), live)
				}
				if list := store.Held(); len(list) != len(want) {
					t.Fatalf("%d partitions are listed, %d held", len(list), len(want))
				}
			},
		})
		store.Close()
		for _, p := range reading {
			p.Release()
		}
		if store.Bytes() != 0 {
			t.Fatalf("%d bytes after Close", store.Bytes())
		}
		if diff := cmp.Diff(put, freed); diff != "" {
			t.Fatalf("bytes put and told to be freed differ: %s", diff)
		}
	})
}

func TestAClosedStoreKeepsNothing(t *testing.T) {
	mem := memory.NewCheckedAllocator(memory.DefaultAllocator)
	defer mem.AssertSize(t, 0)
	store := NewStore("w1", Hooks{})
	store.Close()
	if store.Put("job", 0, numbers(mem, lineage.SourceID(0, 0), 1, 4)) {
		t.Error("a closed store took a partition")
	}
}
