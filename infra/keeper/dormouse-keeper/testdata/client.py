"""Does what its arguments say, as the program of testdata/server does, with Python's own clients."""
import socket, ssl, sys, time, urllib.error, urllib.request

anyone = ssl._create_unverified_context()


def get(url):
    return urllib.request.urlopen(url, context=anyone).read().decode()


def parts(at):
    host, _, port = at.rpartition(":")
    return host.strip("[]"), int(port)


def dial(at):
    socket.create_connection(parts(at)).close()
    return "connected"


def send(at):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as c:
        c.settimeout(20)  # without one, recv in the box does not learn of a refusal
        c.connect(parts(at))
        c.send(b"x")
        c.recv(1)
    return "answered"


def fetch(what):
    size, _, at = what.partition("@")
    took = []
    for _ in range(21):
        begun = time.perf_counter()
        got = len(urllib.request.urlopen(f"http://{at}/{size}").read())
        if got != int(size):
            raise OSError(f"{got} bytes")
        took.append((time.perf_counter() - begun) * 1000)
    return sorted(took)[10]


for deed in sys.argv[1:]:
    verb, _, operand = deed.partition(":")
    try:
        said = {"get": get, "dial": dial, "send": send, "fetch": fetch}[verb](operand)
    except OSError as e:
        why = e.reason if isinstance(e, urllib.error.URLError) else e
        said = f"error {type(why).__name__} {why}"
    print(deed, said, flush=True)
