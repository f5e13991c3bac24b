// Package aggregate makes one endpoint of several servers, the members of a [Group]. A Group is a
// [sessions.Endpoint], and so is each member. A message that names a tool, a resource or a
// question of a member goes to that member, with the member's own name for it. What members send
// comes back as one stream, with the names of the group.
//
// A Group itself answers initialize, server/discover, requests for lists, and search. A Group keeps
// nothing between two messages except a cache of names ([Kept]), and knows no HTTP.
//
//	group.go      the members, their sessions and their events
//	route.go      where messages go
//	answer.go     what a Group answers itself
//	lists.go      what it knows of its members' lists
//	resolve.go    names that only the lists explain
//	kept.go       the cache of these names
//	search.go     find_tools and call_tool
//	merge.go      several streams read side by side
//	listen.go     the standalone streams of the members as one
//	follow.go     their streams of HTTP+SSE as one
//	stateless.go  clients without a session (2026-07-28)
package aggregate
