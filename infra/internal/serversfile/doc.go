// Package serversfile changes the servers file, and the file of variables beside it. It
// adds, replaces and removes servers, switches them on and off, and imports servers from
// the files of other clients. It keeps the comments and the order of the file.
//
// Values that may be secret go to the file of variables ([Env]); the servers file has only
// the variable's name. The package reads and writes no files: it turns texts into texts.
package serversfile
