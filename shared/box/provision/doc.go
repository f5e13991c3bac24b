// Package provision puts in place what a stdio server needs before its process starts:
// a workspace with its program, the dependencies of that program, and, for servers
// that are named by a package instead of a program (npx, uvx), the package itself.
// What comes out is a [Launch]: the command that remains to be executed, with
// nothing left to do that could write to its stdout.
//
// It hides how folders are copied and refreshed, who installs when many starts want
// the same thing at once, where installs are kept and when they are renewed. It
// starts no server, limits nothing and knows no sessions: a process is a name here.
//
// # Workspace
//
// With a host path the workspace is <base>/.mcp/<process>/workspace, a copy that is
// refreshed in place: what has changed or gone at the source changes or goes in the
// copy, what the server made itself stays, and so do .venv, .cache, .tmp and
// node_modules. A host path that is writable is the workspace itself, without a
// copy. The copy is written through [os.Root], because the process that lives there
// may put links in the way.
//
// # Installs
//
// An install has a folder of its own in the cache, named by a digest of what goes
// into it. It is built in a fresh folder inside and counts once the file "ready"
// names that folder; what a crashed start has left is removed by the next. One
// start builds at a time, under flock(2): the kernel takes that lock from a holder
// that dies in whatever way, so there is no stale lock to be recognized by its age
// or by a process id that may be somebody else's by now.
//
// What nobody has used for long, or does not fit any more, [Tidy] removes. A Provisioner
// holds what it has given out until it is closed, or its runner dies, and what is held
// is not removed.
//
// Which packages an install has, with the hash of each, its lock says: a file in the
// folder locks of the cache, or of Config.Locks, named by what was asked for. The first
// start makes it, and it stays until somebody removes it; [Tidy] does not. It depends on
// no path and no program of this machine, so another machine with the same locks gets
// the same bytes. Locks of Python are of one platform.
//
// Installs run in a process group of their own that is killed when the start is
// given up, with a clean environment: proxies, certificates and the settings of
// pip, uv and npm, but nothing else of the runner or the server. They have the
// network also where the server has none. npm and pip execute nothing of what they
// install. Server.Scripts has packages run their code, and a Python project of the host
// path is built in any case. With Config.Compile the program of an npm package is started
// once, to fill Node's compile cache. All of these happen in the place that
// Config.Confine makes.
package provision
