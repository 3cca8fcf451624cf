/** What docs/coming-from.md says, for the tests that hold it to the contract and to what the service does. */
import { readFileSync } from 'node:fs';

export const comingFrom = readFileSync(new URL('../../docs/coming-from.md', import.meta.url), 'utf8');

/** A column of a table of one of the three systems, and where it went. */
export interface Field {
  readonly table: string;
  readonly column: string;
  readonly home: string;
}

/** The columns of "Your fields", by system and in the order of the document. */
export function fieldsOf(system: string): Field[] {
  const fields: Field[] = [];
  let table = '';
  for (const line of sectionOf('Your fields', system)) {
    table = /^#### `(\w+)`/u.exec(line)?.[1] ?? table;
    const [, columns = '', home = ''] = /^\| (`[^|]+`) \| (.+) \|$/u.exec(line) ?? [];
    for (const column of ticked(columns)) fields.push({ table, column, home });
  }
  return fields;
}

/** The columns of which a record that is taken over keeps the old value, by table. */
export function keptFields(system: string): Record<string, string[]> {
  const kept = fieldsOf(system).filter(({ home }) => /[;:] kept$/u.test(home));
  return Object.fromEntries(
    [...Map.groupBy(kept, ({ table }) => table)].map(([table, fields]) => [table, fields.map(({ column }) => column)]),
  );
}

/** The RPCs that "Your code, call by call" names for a system's calls, as paths: `anabranch.v1.RunService.GetRun`. */
export function callsOf(system: string): string[] {
  const text = sectionOf('Your code, call by call', system).join('\n');
  return [...new Set(text.match(/(?<=`)anabranch\.v1\.[A-Z]\w+Service\.\w+(?=`)/gu))].sort();
}

function sectionOf(title: string, system: string): string[] {
  const section = comingFrom.split(/^## /mu).find((each) => each.startsWith(`${title}\n`)) ?? '';
  const part = section.split(/^### /mu).find((each) => each.startsWith(`${system}\n`));
  if (part === undefined) throw new Error(`docs/coming-from.md has no part ${system} in "${title}"`);
  return part.split('\n');
}

function ticked(text: string): string[] {
  return [...text.matchAll(/`(\w+)`/gu)].map((match) => match[1] ?? '');
}
