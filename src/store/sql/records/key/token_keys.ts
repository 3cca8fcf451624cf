import type { Engine } from '../../kit/engine.ts';

export async function listTokenSecrets(engine: Engine): Promise<Uint8Array[]> {
  const rows = await engine.db.selectFrom('token_keys').select('secret').orderBy('number', 'desc').execute();
  return rows.map(({ secret }) => secret);
}
