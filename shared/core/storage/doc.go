// Package storage is the contract between Dormouse and its storage drivers: the records, the [Store]
// that keeps them, their ids, limits and error codes.
//
// To write a driver, read store.go and run the suite storagetest.Store against it. These files explain
// the records and rules:
//
//	records.go   the records of sessions, streams and handshakes
//	box.go       the records of boxes and of the messages on their way to them
//	keys.go      the records of API keys and connect tickets
//	grants.go    the records of grants
//	value.go     durable values of native servers
//	codec.go     the JSON of each record, and how a driver keeps batches and builds pages
//	eventid.go   ids of sessions, streams and events
//	errors.go    the codes that every error carries
//	limits.go    limits of size and time for what is stored
//
// An instance is a running program of Dormouse: one invocation on Lambda, or the one process on one
// machine. The package does no I/O and imports no other package of Dormouse.
package storage
