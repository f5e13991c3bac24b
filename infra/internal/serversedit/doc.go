// Package serversedit changes the servers file, and the file of variables beside it. It
// adds, replaces and removes servers, switches them on and off, and imports servers from
// the files of other clients. It keeps the comments and the order of the file.
//
// Values that may be secret go to the file of variables ([Env]); the servers file has only
// the variable's name. The package turns texts into texts. It writes no files. It reads those
// that a client's file names in envFile ([Read]), and others for its callers ([ReadFile]).
package serversedit
