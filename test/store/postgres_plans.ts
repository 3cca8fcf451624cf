import pg from 'pg';
import { vi } from 'vitest';
import type { TestDatabase } from '../support/database.ts';

/** A step of a plan that was executed. */
export interface PlanStep {
  readonly node: string;
  readonly index: string | undefined;
  readonly table: string | undefined;
  /** Rows that the step read, including those that did not match its conditions. */
  readonly rows: number;
}

/**
 * Tables of tests are so small that Postgres would rather read all of them. The plans of statements that are executed
 * often do not depend on their values.
 */
const BY_INDEX = ['seqscan', 'bitmapscan', 'hashjoin', 'mergejoin']
  .map((kind) => `set enable_${kind} = off`)
  .concat('set plan_cache_mode = force_generic_plan')
  .join(';');

/**
 * Returns the plans of the reads that `work` sends: for each read, the steps of its plan by indexes, under the settings
 * it was sent with. The reads are executed again for this.
 */
export async function plansOf(database: TestDatabase, work: () => Promise<unknown>): Promise<PlanStep[][]> {
  const sent = await queriesOf(work);
  const client = new pg.Client(database.url);
  await client.connect();
  await client.query(BY_INDEX);
  try {
    const plans: PlanStep[][] = [];
    for (const { text, values } of sent) {
      if (/^(?:begin|commit)\b/.test(text)) await client.query(text);
      else plans.push(await planOf(client, text, values));
    }
    return plans;
  } finally {
    await client.end();
  }
}

interface Query {
  readonly text: string;
  readonly values: readonly unknown[];
}

/** Returns the reads, and the statements that start and end their transactions, by connection. */
async function queriesOf(work: () => Promise<unknown>): Promise<Query[]> {
  const spy = vi.spyOn(pg.Client.prototype, 'query');
  try {
    await work();
    const { contexts } = spy.mock;
    const calls = (spy.mock.calls as unknown[][]).map(([query], i) => ({ client: contexts[i], query }));
    const byClient = [...Map.groupBy(calls, ({ client }) => client).values()].flat();
    return byClient.flatMap(({ query }) => {
      const { text = '', values = [] } = typeof query === 'string' ? { text: query } : (query as Partial<Query>);
      return /^\s*(?:select|with|begin|commit)\b/.test(text) && !text.includes('pg_notify') ? [{ text, values }] : [];
    });
  } finally {
    spy.mockRestore();
  }
}

function textOf(value: unknown): string {
  if (value instanceof Uint8Array) return `\\x${Buffer.from(value).toString('hex')}`;
  return Array.isArray(value) ? `{${value.map((item) => JSON.stringify(`${item}`)).join()}}` : `${value}`;
}

async function planOf(client: pg.Client, text: string, values: readonly unknown[]): Promise<PlanStep[]> {
  const literals = values.map((value) => client.escapeLiteral(textOf(value)));
  const given = literals.length === 0 ? '' : `(${literals.join()})`;
  await client.query(`prepare read as ${text}`);
  const { rows } = await client.query(`explain (analyze, timing off, format json) execute read${given}`);
  await client.query('deallocate read');
  return [...stepsOf((rows as { 'QUERY PLAN': [{ Plan: Plan }] }[])[0]!['QUERY PLAN'][0].Plan)];
}

interface Plan {
  readonly 'Node Type': string;
  readonly 'Index Name'?: string;
  readonly 'Relation Name'?: string;
  readonly 'Actual Rows': number;
  readonly 'Actual Loops': number;
  readonly 'Rows Removed by Filter'?: number;
  readonly Plans?: readonly Plan[];
}

function* stepsOf(plan: Plan): Generator<PlanStep> {
  const found = plan['Actual Rows'] + (plan['Rows Removed by Filter'] ?? 0);
  yield {
    node: plan['Node Type'],
    index: plan['Index Name'],
    table: plan['Relation Name'],
    rows: Math.round(found * plan['Actual Loops']),
  };
  for (const each of plan.Plans ?? []) yield* stepsOf(each);
}
