// Package api serves the JSON API of operators: what the commands of dormouse show and
// do, over HTTP. docs/http-api.md describes paths, shapes and errors.
//
// The same handler runs in three places. Callers of the control socket of `dormouse run` know the
// secret of its data folder. Callers of the endpoint have an API key of role viewer, auditor or
// operator. The third place is inside a command that reads a store while nothing is up. What a
// place lacks, such as the processes of a stack on AWS, is a nil field of [Options]. Routes that
// need the field answer not_here.
//
// A caller with an API key sees only records of the key's tenant and servers.
package api
