/**
 * Records the statements that stores send to Postgres in the file that STATEMENTS_SENT names: a JSON text a line. Each
 * process writes each statement once. Records nothing without the variable.
 */
import { appendFileSync, readFileSync } from 'node:fs';
import process from 'node:process';
import pg from 'pg';

type Query = (this: pg.Client, ...args: unknown[]) => unknown;

const FILE = process.env.STATEMENTS_SENT;
const RECORDER = Symbol.for('anabranch.recorder');
/** What connections of the store are called. */
const NAMES = new Set(['anabranch', 'anabranch listener', 'anabranch reset']);

/** Returns the statements that were recorded in a file. */
export function readStatements(file: string): Set<string> {
  const lines = readFileSync(file, 'utf8').trimEnd().split('\n');
  return new Set(lines.map((line) => JSON.parse(line) as string));
}

function record(file: string): void {
  const prototype = pg.Client.prototype as unknown as { query: Query & { [RECORDER]?: true } };
  const send = prototype.query;
  if (send[RECORDER]) return;
  const seen = new Set<string>();
  const recorded: Query = function (...args) {
    const text = textOf(args[0]);
    // Tests ask connections of the store for the plans of their statements.
    if (isOfStore(this) && !text.startsWith('explain ') && !seen.has(text)) {
      seen.add(text);
      appendFileSync(file, `${JSON.stringify(text)}\n`);
    }
    return send.apply(this, args);
  };
  prototype.query = Object.assign(recorded, { [RECORDER]: true as const });
}

function textOf(query: unknown): string {
  return typeof query === 'string' ? query : String((query as { text?: unknown }).text);
}

/** Whether a connection is one of the store, and not one by which a test looks at the database. */
function isOfStore(client: pg.Client): boolean {
  const { application_name: name } = (client as unknown as { connectionParameters: { application_name?: string } })
    .connectionParameters;
  return name !== undefined && NAMES.has(name);
}

if (FILE !== undefined) record(FILE);
