// Package sessiontest is what a [session.Store] promises, as tests that every
// driver runs, and what tests of others need around a store: one that counts
// ([Counting]), one that fails ([Faulty]), and one in memory ([Memory]).
//
// The suite knows the contract only (the comments of session.Store). What is
// special to a driver, such as its bounds, is tested beside the driver. Tests
// import this package, nothing else does.
package sessiontest
