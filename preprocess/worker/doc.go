// Package worker is the process that makes partitions: it takes source partitions from the dispatcher, reads their
// samples, runs the stages of the recipe on them and keeps the final output partitions until everyone has consumed
// them.
//
// A [Worker] holds one stream to the dispatcher. Each job on it has its own executor; they divide the slots and bytes
// of the process. What a partition holds, and where one ends, follows from data and configuration alone, never from
// timing.
package worker
