// Package quota keeps the limits of callers: the rate of a principal's calls, its calls in flight,
// the boxes in which a tenant's servers run, and what a tenant spends in a month. [Limiter] admits
// work, and counts what it cost.
//
// # What it stores
//
// Everything is in durable values ([storage.Values]). Their keys name no server, so that servers
// written in Go, which have values too, cannot reach them. Each is one row:
//
//   - the rate of a principal: when its bucket is full again;
//   - the calls in flight of a principal;
//   - the account of a tenant: its own limits, and what it has used.
//
// # Rates
//
// A rate is a bucket of tokens. An instance takes several tokens at a time from the row and spends
// them from memory within a second, so that most calls of a busy caller write nothing. The bucket
// is smaller than the burst by the tokens that may be in memory, so that all instances together never exceed
// the limit in any window. For a low limit, an instance takes one token at a time. An instance that
// has refused a call asks the store again only when the refusal is over.
//
// A row has the latest time that any of its writers has seen, and an instance whose clock is
// behind uses that time. A clock that is ahead therefore refills a bucket at most once too early.
//
// # Money
//
// The cost of an invocation is what the bill says ([meter.Prices]). An instance adds it to the
// account after a cent or a minute, whichever comes first. Above 90 percent of the cap, it adds
// the cost after every invocation. The cap may be exceeded by a cent for each instance, and by
// the cost of the boxes that run at that time.
//
// # Trouble with the store
//
// While the store fails, each instance limits the rates by itself, at half of each rate. A tenant
// with a cap of money is refused once its account could not be read for ten minutes.
package quota
