#!/usr/bin/env node
// The command. It is written so that an old Node can read it: it then runs on the Node that comes with the package, or
// says in one line that a newer one is needed.
import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const WANTED = [24, 17];

const version = process.versions.node.split('.').map(Number);
const tooOld = version[0] < WANTED[0] || (version[0] === WANTED[0] && version[1] < WANTED[1]);

if (!tooOld) {
  // The published package holds compiled code only; a checkout runs its sources as they are.
  const source = new URL('../src/main.ts', import.meta.url);
  void import(existsSync(source) ? source.href : new URL('../dist/src/main.js', import.meta.url).href);
} else {
  const node = bundledNode();
  if (node !== undefined) runOn(node);
  else {
    console.error(
      'anabranch needs Node ' +
        WANTED.join('.') +
        ' or newer, and this is Node ' +
        process.versions.node +
        ' (' +
        process.execPath +
        '). Get a newer one from https://nodejs.org',
    );
    process.exitCode = 1;
  }
}

/** Finds the Node that npm has installed with the package, whatever the working directory is. */
function bundledNode() {
  const { resolve } = createRequire(import.meta.url);
  for (const name of ['node-', 'node-bin-']) {
    try {
      const manifest = resolve(`${name}${process.platform}-${process.arch}/package.json`);
      return join(manifest, '../bin/node');
    } catch {
      // Not installed: the dependency is optional.
    }
  }
  return undefined;
}

/** Runs the command on another Node, and ends as it does. */
function runOn(node) {
  const script = fileURLToPath(import.meta.url);
  const child = spawn(node, [script].concat(process.argv.slice(2)), { stdio: 'inherit' });
  // A terminal sends Ctrl-C to both.
  const hasTerminal = process.stdin.isTTY || process.stdout.isTTY || process.stderr.isTTY;
  process.on('SIGINT', () => hasTerminal || child.kill('SIGINT'));
  for (const signal of ['SIGTERM', 'SIGHUP']) process.on(signal, () => child.kill(signal));
  child.on('error', (error) => {
    console.error(`anabranch cannot start ${node}: ${error.message}`);
    process.exitCode = 1;
  });
  child.on('exit', (code, signal) => {
    process.exitCode = code === null ? 1 : code;
    if (signal === null) return;
    process.removeAllListeners(signal);
    process.kill(process.pid, signal);
  });
}
