#!/usr/bin/env node
// The command. It is written so that an old Node can read it, and says in one line that it is too old.
import { existsSync } from 'node:fs';

const WANTED = [24, 17];

const version = process.versions.node.split('.').map(Number);
const tooOld = version[0] < WANTED[0] || (version[0] === WANTED[0] && version[1] < WANTED[1]);

if (tooOld) {
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
} else {
  // The published package holds compiled code only; a checkout runs its sources as they are.
  const source = new URL('../src/main.ts', import.meta.url);
  void import(existsSync(source) ? source.href : new URL('../dist/src/main.js', import.meta.url).href);
}
