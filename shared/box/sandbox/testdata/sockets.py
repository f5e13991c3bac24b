import errno, os, socket, subprocess, sys, threading, tempfile, multiprocessing

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
