import asyncio, errno, os, socket, subprocess, sys, threading, tempfile, multiprocessing

def say(name, attempt):
    try:
        attempt()
        print(name + "=ok")
    except OSError as e:
        print(name + "=" + errno.errorcode.get(e.errno, str(e)))

say("tcp", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
say("udp", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
say("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
say("tcp6", lambda: socket.socket(socket.AF_INET6, socket.SOCK_STREAM))
host, port = sys.argv[1].rsplit(":", 1)
say("connect", lambda: socket.create_connection((host, int(port))))
say("pair", lambda: socket.socketpair())
say("child", lambda: subprocess.run([sys.executable, "-c", "pass"], check=True))
t = threading.Thread(target=lambda: None)
say("thread", t.start)
say("file", lambda: tempfile.NamedTemporaryFile())
say("unix", lambda: socket.socket(socket.AF_UNIX))
say("lookup", lambda: socket.getaddrinfo("localhost", 80))

async def loop():
    p = await asyncio.create_subprocess_exec(sys.executable, "-c", "print(input())",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    out, _ = await p.communicate(b"said\n")
    assert out == b"said\n" and p.returncode == 0
say("loop", lambda: asyncio.run(loop()))
