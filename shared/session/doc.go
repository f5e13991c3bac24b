// Package session is the contract between Dormouse and its storage drivers. It has
// the records (a session, a box, a message on its way, an event), the [Store] that
// keeps them, their ids, limits and error codes.
//
// It does no I/O and imports no other package of Dormouse. What is done with the
// records is in package host; drivers do not see it. The suite sessiontest.Store
// is this contract as tests.
package session
