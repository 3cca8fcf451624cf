import { randomBytes } from 'node:crypto';
import type { OutsideSql } from './sql.ts';

/** Adds a secret for tokens, as an operator does. Returns it. */
export async function addTokenKey(sql: OutsideSql): Promise<Buffer> {
  const secret = randomBytes(32);
  const value = sql.engine === 'sqlite' ? `x'${secret.toString('hex')}'` : `'\\x${secret.toString('hex')}'`;
  await sql.rows(`insert into token_keys (number, secret) select max(number) + 1, ${value} from token_keys`);
  return secret;
}

/** Deletes all secrets but the newest. */
export async function forgetOldTokenKeys(sql: OutsideSql): Promise<void> {
  await sql.rows('delete from token_keys where number < (select max(number) from token_keys)');
}
