import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { expect, it } from 'vitest';
import { ROOT, sources } from './source.ts';

/** Lines of the protos and of src that a text field may take by hand, without comments (CONTRIBUTING.md). */
const MOST_MENTIONS = 12;

const PROTOS = 'proto/anabranch/v1';

/** Lines with a field name, by file: `path: line`. */
function mentions(field: RegExp): string[] {
  const protos = readdirSync(path.join(ROOT, PROTOS)).map((name) => {
    const text = readFileSync(path.join(ROOT, PROTOS, name), 'utf8');
    return { path: `${PROTOS}/${name}`, code: text.replace(/\/\/.*/g, '') };
  });
  return [...protos, ...sources('src')].flatMap(({ path: file, code }) =>
    code.split('\n').flatMap((line) => (field.test(line) ? [`${file}: ${line.trim()}`] : [])),
  );
}

it.each([
  // Summaries by model are a feature of their own.
  ['rollout', /model_uri|modelUri/, /^(?!.*(stage|summar|\/runs?[._]|_runs\.))/],
  ['stage', /model_uri|modelUri/, /^(?!.*summar).*(stage|\/runs?[._]|_runs\.)/],
  ['task', /app_name|appName/, /./],
] as const)('a text field of a %s takes few lines: %s', (_, field, files) => {
  // The baseline has the columns of all tables in one file.
  const all = [...new Set(mentions(field))];
  const lines = all.filter((line) => files.test(line.slice(0, line.indexOf(':'))));
  expect(lines.length, lines.join('\n')).toBeGreaterThan(5);
  expect(lines.length, lines.join('\n')).toBeLessThanOrEqual(MOST_MENTIONS);
});
