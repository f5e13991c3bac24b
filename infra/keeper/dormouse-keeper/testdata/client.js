// Does what its arguments say, as the program of testdata/server does, with Node's own clients.
const net = require("net"), dgram = require("dgram")
process.env.NODE_TLS_REJECT_UNAUTHORIZED = "0"
process.removeAllListeners("warning")

const until = (emitter, good, f) => new Promise((resolve, reject) => emitter.once(good, m => resolve(f(m))).once("error", reject))
const parts = at => [at.slice(0, at.lastIndexOf(":")).replace(/[[\]]/g, ""), Number(at.slice(at.lastIndexOf(":") + 1))]
const deeds = {
  get: async url => (await fetch(url)).text(),
  dial: at => {
    const [host, port] = parts(at)
    const c = net.connect(port, host)
    return until(c, "connect", () => { c.destroy(); return "connected" })
  },
  send: at => {
    const [host, port] = parts(at)
    const c = dgram.createSocket("udp4")
    c.connect(port, host, () => c.send("x"))
    return until(c, "message", () => "answered").finally(() => c.close())
  },
  fetch: async what => {
    const [size, at] = what.split("@"), took = []
    for (let n = 0; n < 21; n++) {
      const begun = performance.now()
      const got = (await (await fetch(`http://${at}/${size}`)).arrayBuffer()).byteLength
      if (got != size) throw new Error(`${got} bytes`)
      took.push(performance.now() - begun)
    }
    return took.sort((a, b) => a - b)[10]
  },
}

async function main() {
  for (const deed of process.argv.slice(2)) {
    const verb = deed.slice(0, deed.indexOf(":")), operand = deed.slice(verb.length + 1)
    console.log(deed, await deeds[verb](operand).catch(e => "error " + (e.cause ?? e).message))
  }
}
main()
