// Bundles the workflows once, as a production worker does: node bundle.mjs OUTPUT
import { writeFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { bundleWorkflowCode } from '@temporalio/worker';

const { code } = await bundleWorkflowCode({
  workflowsPath: fileURLToPath(new URL('./workflows/index.ts', import.meta.url)),
});
await writeFile(process.argv[2], code);
