// Package storagetest has the contract of [storage.Store] as tests that every driver runs. It
// also has stores for other tests: one that counts its calls ([Counting]), one that fails
// ([Faulty]), and one in memory ([Memory]).
//
// The suite knows only the contract, which is the comments of storage.Store. The tests beside
// a driver cover its own features, such as its bounds. Only tests import this package.
package storagetest
