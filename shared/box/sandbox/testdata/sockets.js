const net = require('net'), dgram = require('dgram'), fs = require('fs'), os = require('os'), path = require('path');
const { execFileSync, fork } = require('child_process');
const { Worker } = require('worker_threads');
const say = (name, e) => console.log(name + '=' + (e ? e.code || e.message : 'ok'));
const [host, port] = [process.argv[2].replace(/:\d+$/, ''), Number(process.argv[2].replace(/.*:/, ''))];

const connect = (name, ...to) => new Promise((done) => {
  const c = net.connect(...to);
  c.on('connect', () => { say(name); c.destroy(); done(); });
  c.on('error', (e) => { say(name, e); done(); });
});
const udp = () => new Promise((done) => {
  const s = dgram.createSocket('udp4');
  s.on('error', (e) => { say('udp', e); done(); });
  s.bind(0, '127.0.0.1', () => { say('udp'); s.close(); done(); });
});
const unix = () => new Promise((done) => {
  const file = path.join(os.tmpdir(), 'node.sock');
  const s = net.createServer((c) => c.end());
  s.on('error', (e) => { say('unix', e); done(); });
  s.listen(file, async () => { await connect('unix', file); s.close(done); });
});
const worker = () => new Promise((done) => {
  new Worker('', { eval: true }).on('exit', () => { say('thread'); done(); }).on('error', (e) => { say('thread', e); done(); });
});

const child = () => new Promise((done) => {
  const c = fork('', { execArgv: ['-e', 'process.on("message", (m) => { process.send(m + 1); process.disconnect(); })'] });
  c.on('message', (m) => { say('fork', m === 2 ? null : new Error('said ' + m)); done(); });
  c.on('error', (e) => { say('fork', e); done(); });
  c.on('exit', (code) => { if (code) { say('fork', new Error('exit ' + code)); done(); } });
  c.send(1);
});

(async () => {
  await connect('connect', port, host);
  await udp();
  await unix();
  await worker();
  await child();
  try { os.networkInterfaces(); say('interfaces'); } catch (e) { say('interfaces', e); }
  await new Promise((done) => require('dns').lookup('localhost', (e) => { say('lookup', e); done(); }));
  try { execFileSync(process.execPath, ['-e', '0']); say('child'); } catch (e) { say('child', e); }
  try { fs.writeFileSync(path.join(os.tmpdir(), 'file'), 'x'); say('file'); } catch (e) { say('file', e); }
})();
