// Package group makes one MCP server of several, as far as that is a matter of names. The
// package does no I/O.
//
// A group has members, which are servers. What a client sees and what a member sees differ
// in these places, and in no other:
//
//	tools, prompts            member__name           [Names.Join]
//	resources, templates      dormouse://member/URI  [WrapURI]
//	pages of apps, skills     ui://member/…, skill://member/…
//	ids of a member's requests, tokens, tasks  member~id  [WrapID]
package group
