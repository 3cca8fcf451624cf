import { randomBytes, randomUUID } from 'node:crypto';
import { type AnabranchClient, openWriter } from '../../src/client/index.ts';

/** Stores a trajectory of about this many MiB that do not compress to less than half. Returns its id. */
export async function fill(client: AnabranchClient, mib: number): Promise<string> {
  const trajectoryId = randomUUID();
  const writer = await openWriter(client, { trajectoryId, create: { trajectory: {} } });
  for (let i = 0; i < mib * 4; i += 1) {
    await writer.append({ infoJson: JSON.stringify(randomBytes(120 * 1024).toString('hex')) });
  }
  await writer.close();
  return trajectoryId;
}
