import { readFileSync } from 'node:fs';

/** Reads the version from package.json, which is found from the sources and from the compiled files. */
export function packageVersion(): string {
  for (const path of ['../package.json', '../../package.json']) {
    try {
      const manifest = JSON.parse(readFileSync(new URL(path, import.meta.url), 'utf8')) as { version: string };
      return manifest.version;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
    }
  }
  throw new Error('package.json is missing in the directory of the program');
}
