// Package held keeps the tools of servers as an operator has accepted them. The first list that a
// server gives counts as accepted. A tool that is new or different in a later list is held back until
// an operator accepts it: clients see what was accepted, byte for byte, and calls of a new tool are
// refused.
//
// # Where acceptance lives
//
// The store has one durable value for each server: the accepted tools, and the ones that are held
// back. All programs that serve clients read it. Each change is conditional: of two first lists that
// come at the same time, only one is accepted. A lock file beside the servers file ([Lock]) may have
// accepted tools too. If the lock's entry for a server is not the one from which the store's value
// came, the entry replaces the value. Tools that operators accept later thus count until a different
// lock is deployed.
package held
