import { mkdtemp, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import type { TestProject } from 'vitest/node';
import { findNode20, installPackage, packPackage } from './installed.ts';

declare module 'vitest' {
  interface ProvidedContext {
    /** The project that the package is installed in. */
    readonly project: string;
    /** The packed package. */
    readonly tarball: string;
    /** The program `node`, version 20. */
    readonly node20: string;
  }
}

/** Packs the package and installs it once, before the tests of `npm run test:package`. */
export async function setup({ provide }: TestProject): Promise<() => Promise<void>> {
  const node20 = await findNode20();
  const folder = await mkdtemp(path.join(os.tmpdir(), 'anabranch-package-'));
  provide('node20', node20);
  const tarball = await packPackage(folder);
  provide('tarball', tarball);
  provide('project', await installPackage(folder, node20, tarball));
  return () => rm(folder, { recursive: true, force: true });
}
