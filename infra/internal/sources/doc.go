// Package sources reads what a person names as a server: a package, an image, a URL, a
// repository, a folder, a bundle. It says what that is, how it is called, and how it starts.
// It reads files, and only [Bundle.Unpack] writes any. It asks no network.
package sources
