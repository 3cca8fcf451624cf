import type { Selectable } from 'kysely';
import type { ApiKey, Role } from '../../../../domain/access.ts';
import { AnabranchError } from '../../../../domain/errors.ts';
import { formatInstant, parseInstant } from '../../../../domain/instant.ts';
import { NANOS_PER_MS } from '../../../../domain/lease.ts';
import type { NewApiKey } from '../../../contract/key.ts';
import type { Page } from '../../../contract/request.ts';
import type { Engine } from '../../kit/engine.ts';
import type { Tables } from '../../kit/tables.ts';
import { write } from '../../kit/transaction.ts';
import { readList, readOptionalTime } from '../../kit/values.ts';

export async function createKey(
  engine: Engine,
  { id, name, role, namespaces, digest, validMs }: NewApiKey,
): Promise<ApiKey> {
  return write(engine, async (tx) => {
    const create_time = await tx.readNow();
    const expire_time =
      validMs === undefined ? null : formatInstant(parseInstant(create_time) + validMs * NANOS_PER_MS, 6);
    const row = {
      id,
      name,
      role,
      namespaces: JSON.stringify(namespaces),
      digest,
      create_time,
      expire_time,
      revoke_time: null,
    };
    await tx.db.insertInto('api_keys').values(row).execute();
    return readKey(row);
  });
}

export async function listKeys(engine: Engine, page: Page<string>): Promise<ApiKey[]> {
  let query = engine.db.selectFrom('api_keys').selectAll();
  if (page.after !== undefined) query = query.where('id', '>', page.after);
  return (await query.orderBy('id').limit(page.limit).execute()).map(readKey);
}

export async function revokeKey(engine: Engine, id: string): Promise<ApiKey> {
  return write(engine, async (tx) => {
    const query = tx.db.selectFrom('api_keys').selectAll().where('id', '=', id);
    const row = await tx.engine.locks.rows(query, 'write').executeTakeFirst();
    if (row === undefined) throw apiKeyNotFound(id);
    if (row.revoke_time !== null) return readKey(row);
    const revoke_time = await tx.readNow();
    await tx.db.updateTable('api_keys').set({ revoke_time }).where('id', '=', id).execute();
    return readKey({ ...row, revoke_time });
  });
}

export async function findKey(engine: Engine, digest: Uint8Array): Promise<ApiKey | undefined> {
  const row = await engine.db.selectFrom('api_keys').selectAll().where('digest', '=', digest).executeTakeFirst();
  return row && readKey(row);
}

export async function findValidKeys(engine: Engine, ids: readonly string[]): Promise<ReadonlySet<string>> {
  if (ids.length === 0) return new Set();
  const query = engine.db.selectFrom('api_keys').select('id').where('id', 'in', ids).where('revoke_time', 'is', null);
  return new Set((await query.execute()).map(({ id }) => id));
}

type KeyRow = Omit<Selectable<Tables['api_keys']>, 'digest'>;

function readKey({ id, name, role, namespaces, create_time, expire_time, revoke_time }: KeyRow): ApiKey {
  return {
    id,
    name,
    role: role as Role,
    namespaces: readList(namespaces),
    createTime: parseInstant(create_time),
    expireTime: readOptionalTime(expire_time),
    revokeTime: readOptionalTime(revoke_time),
  };
}

function apiKeyNotFound(id: string): AnabranchError {
  return new AnabranchError('API_KEY_NOT_FOUND', `API key ${id} does not exist. ListKeys returns those that exist.`, {
    metadata: { key_id: id },
  });
}
