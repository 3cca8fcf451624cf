import type { StorageFault } from '../../../../domain/verification.ts';
import type { Engine } from '../../kit/engine.ts';
import { listTokenSecrets } from '../../records/key/token_keys.ts';

/** Bytes of each secret. */
const SECRET_BYTES = 32;

/** RD12: the installation needs a secret that cannot be guessed. */
export async function checkTokenKeys(engine: Engine): Promise<StorageFault[]> {
  const secrets = await listTokenSecrets(engine);
  const fault = (message: string): StorageFault => {
    return { check: 'ROWS', namespace: '', message: `table token_keys: ${message}` };
  };
  if (secrets.length === 0) return [fault('there is no row, so no page can have a token: insert a secret')];
  return secrets
    .filter(({ length }) => length !== SECRET_BYTES)
    .map(({ length }) => fault(`"secret" must have ${SECRET_BYTES} bytes, but one has ${length}`));
}
