// Package provision puts in place what a stdio server needs before its process starts: a
// workspace with its program, and the dependencies of that program. If the command names a
// package instead of a program (npx, uvx), it installs the package too. The result is a
// [Launch]: the command that remains to be executed. That command installs nothing, so no
// installer writes to the server's stdout.
//
// The package hides how folders are copied and refreshed, which of many starts installs,
// where installs are kept and when they are renewed. It starts no server, sets no limits
// and knows no sessions: it knows a process only by its name.
//
// # Workspace
//
// With a host path the workspace is <base>/.mcp/<process>/workspace, a copy that is
// refreshed in place. Changes and removals at the source are repeated in the copy. What a
// process changed or removed stays so until the source changes, or for good once it came
// back from a sleep. Files that the server made itself stay, and so do .venv, .cache, .tmp and node_modules. A
// writable host path is the workspace itself, without a copy. The copy is written through
// [os.Root], because the process that works there may put links in the way.
//
// # Installs
//
// An install has a folder of its own in the cache, named by a digest of its inputs. It is
// built in a fresh folder inside, and is valid once the file "ready" names that folder.
// The next start removes the remains of a crashed one. One start builds at a time, under
// flock(2). The kernel releases that lock when its holder dies. So no start has to
// recognize a stale lock by its age, or by a process id that another process may have by
// now.
//
// [Tidy] removes installs that were not used for long, or that exceed the limit of the
// cache. A Provisioner holds the installs it has given out until it is closed or its
// runner dies. Tidy does not remove an install that is held.
//
// The lock of an install lists its packages with their hashes. It is a file in the folder
// locks of the cache, or of Config.Locks, named by the request. The first start makes it,
// and it stays until an operator removes it; [Tidy] does not. It depends on no path and no
// program of this machine, so another machine with the same locks gets the same bytes.
// Locks of Python are for one platform.
//
// With Config.Kept the cache begins empty. An install then has the name of its request
// instead of its lock, so nothing has to be resolved before it is found. It is packed
// before its program gets arguments or variables, and only if no file of it holds a
// credential of the installers. A kept install that is damaged, or does not fit, is
// ignored; the start then installs.
//
// Installs run in a process group of their own, which is killed when the start is given
// up. Their environment has proxies, certificates and the settings of pip, uv and npm, and
// nothing else of the runner or the server. They have the network even if the server has
// none. npm and uv execute no code of the packages they install, with these exceptions:
//
//   - Server.Scripts lets packages run their code.
//   - A Python project of the host path is always built, with what it needs for that.
//
// All of these run in the sandbox that Config.Confine makes.
package provision
