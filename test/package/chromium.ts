import { existsSync } from 'node:fs';
import path from 'node:path';
import process from 'node:process';

const NAMES = ['chromium', 'chromium-browser', 'google-chrome'];

/** Finds Chromium: the program that CHROMIUM names, else the first one on the PATH, of which some are preferred. */
export function findChromium(preferred: readonly string[] = []): string {
  const folders = (process.env.PATH ?? '').split(path.delimiter);
  const candidates = [...preferred, ...NAMES].flatMap((name) => folders.map((folder) => path.join(folder, name)));
  const found = process.env.CHROMIUM ?? candidates.find((program) => existsSync(program));
  if (found !== undefined) return found;
  throw new Error(
    `The tests of the package need Chromium: no ${NAMES.join(', ')} on the PATH. ` +
      'Install it (apt-get install chromium), or set CHROMIUM to its path.',
  );
}
