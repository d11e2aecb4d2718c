// Package journal is the memory of a dispatcher: the few facts that can't be derived, as records in numbered entries.
//
// It is pure. An [Entry] is the unit that is written whole or not at all; the entries of a log are numbered without
// gaps, and every one is created once, by whoever comes first. So the log is its own fence: a dispatcher that takes over
// creates the next entry with a higher term, and the one before it finds the number taken. Package keep stores entries.
//
// What is logged: which jobs were opened and how, their ranks, where their generation began and how far every rank has
// come, the fingerprint that they are bound to, and which workers there were. Which partitions exist, who holds them
// and how many rows they have is not: workers and sidecars say so when they come back, and the rest is made again.
package journal
