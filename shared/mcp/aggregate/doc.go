// Package aggregate makes one endpoint of several servers. A [Group] is a [sessions.Endpoint],
// and so are its members: a message that names a tool, a resource or a question of a member
// goes to that member, with the member's own name for it. What members send comes back as one
// stream, with the names of the group in it. Package group has the names.
//
// A Group answers itself what concerns all members: initialize, server/discover, lists, and
// search. It keeps nothing between two messages but what can be made anew ([Kept]), and knows no
// HTTP.
//
//	group.go      the members, their sessions and their events
//	route.go      where messages go
//	answer.go     what a Group answers itself
//	lists.go      what it knows of its members' lists
//	resolve.go    names that only the lists explain
//	kept.go       what is kept of that
//	search.go     find_tools and call_tool
//	merge.go      several streams read side by side
//	listen.go     the standalone streams of the members as one
//	follow.go     their streams of HTTP+SSE as one
//	stateless.go  clients without a session (2026-07-28)
package aggregate
