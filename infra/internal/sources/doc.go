// Package sources finds out what a user means by one word that stands for a server: a package, an
// image, a URL, a repository, a folder or a bundle. It returns the kind, a name for the server,
// and how to start it. It reads files, but only [Bundle.Unpack] writes some. It does not use the
// network.
package sources
