// Package storagetest has the contract of [storage.Store] as tests that every driver runs. It
// also has stores for other tests: one that counts its calls ([Counting]), one that fails
// ([Faulty]), and one in memory ([Memory]).
//
// The contract is in the comments of storage.Store, and the suite tests nothing else. Only tests import
// this package.
package storagetest
