package resourceserver

// SameHost is the redirect rule of the client that a server gets by default.
var SameHost = sameHost
