// Package exec is the core of the streaming-batch executor: a state machine that says which stage runs next, on what
// partition and on which node, so that every output of every source partition is made exactly once within the byte
// budget of each node.
//
// It has two users. Inside a worker there is one node and several stages, and slots are cpu slots, python slots and so
// on. In the dispatcher there are many nodes (the workers) and one stage, and a slot is a source partition that may be
// outstanding on a worker, so that a [Launch] is a grant.
//
// # Use
//
// The caller tells the core what happened ([Core.Apply]) and then asks what to do ([Core.Decide]). The core has no
// clock, goroutine, network or random source: equal events give equal decisions. It is not safe for concurrent use.
// The cost of an event is logarithmic in what is queued and in the number of nodes, and grows with nothing else, but
// for node losses and withdrawals, which cost what they touch.
//
// # Partitions
//
// A partition of depth d below its source partition waits for a task of a stage. Outputs are told by [OutputReady] and
// are held on the node of their task until the next stage has used them up ([FreeInput] is then decided) or, for
// outputs of the last stage, until everyone has consumed them (the event [Freed]). With one stage, outputs may be any
// partitions made from the input, not only its children: a worker reports the outputs of its last stage.
//
// # Memory
//
// A task is charged what it is expected to make when it is launched, and what it made as that becomes known. Work is
// launched while the node's budget covers it; new source partitions have to leave room for the later stages too. Once
// all stages of a plan were measured, a source partition may also be admitted with the charge of its first outputs
// alone, at the pace at which the node works source partitions off: that of the resource with most work.
//
// A task that has used up its charge goes on while the node has room for its next output and, if it made more than was
// expected, fewer than MaxUnread of its outputs wait for a reader; else it is paused ([Pause], [OutputBlocked],
// [Resume]). The bound holds if no output is larger than StageSpec.MaxOutputBytes, if Decide is called before a task
// reports another output, and if a paused task takes no memory for it. Then a node is never over its budget, but for this: the earliest unfinished source partition
// may always run, one such at a time, and so may one that a rank waits for ([Needed]). A node is over its budget by at
// most the bytes of these. The ReplayReserve of each budget is for such source partitions and for replays alone.
//
// Slots are never lacking for ever either: where the next task of the earliest unfinished source partition takes several
// slots, these are kept for it as they become free, and where they are all with tasks that are paused, the latest of
// these are cancelled.
//
// # Recovery
//
// A lost partition is made again from its lineage: the nearest ancestor that is still held, or the source partition,
// and only the outputs that are missing are kept ([Launch].Skip lists the rest). A later attempt has a higher number
// and reports of earlier ones are ignored.
package exec
