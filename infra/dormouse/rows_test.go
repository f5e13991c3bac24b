package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// rows maps the acceptance rows of the terminal, the commands and the servers file to the
// tests that hold them, in this package or in the folder before the colon.
func rows() map[string][]string {
	const (
		display = "infra/local/display:"
		local   = "infra/local:"
		catalog = "shared/catalog:"
		clients = "infra/internal/clientfile:"
		file    = "infra/internal/serversfile:"
	)
	return map[string][]string{
		"U-1":  {"TestE2EServerIsAddedHostedAndCalled"},
		"U-2":  {"TestE2EAddedServerAnswersItsFirstClientsWithoutAProcess"},
		"U-3":  {display + "TestADayOnAScreen", display + "TestADayInTheLogOfAnotherProgram", "TestRunOnATerminal", "TestE2EReasonOfAFailedStartIsTheSameEverywhere"},
		"U-4":  {display + "TestAnInstallMoves", display + "TestALineScreenRewritesNothing"},
		"U-5":  {display + "TestTwentyServersStartWithAtMostThirtyLines", local + "TestFirstBlockCountsToolsFromTheRecords"},
		"U-6":  {"TestE2EServerThatCannotBeHostedCostsItselfOnly", local + "TestFileThatCannotBeServedChangesNothingAndIsSaidOnce"},
		"U-7":  {"TestE2EReloadOfABrokenFile"},
		"U-8":  {"TestE2EReloadAddsAServer", "TestE2EReloadRemovesAServer", "TestE2EReloadChangesAServer", "TestE2EReloadOfATimeoutKeepsTheProcess", "TestE2EReloadOfDotEnv"},
		"U-9":  {catalog + "TestEveryClientsFileIsRead", file + "TestEveryClientsFileIsImported", "TestE2EImportedServersAreHosted", "TestE2EFileOfVSCodeIsHosted"},
		"U-10": {file + "TestSecretsOfAnEntryMoveAndTheRestStays", file + "TestSecretsOfACommandLineMove", "TestTerminalDoesNotShowSecrets"},
		"U-11": {"TestE2EFilesBesideTheServersFileAreFound"},
		"U-12": {"TestE2EReasonOfAFailedStartIsTheSameEverywhere"},
		"U-13": {"TestE2EDormouseAloneHosts"},
		"U-14": {"TestE2EBehindAReverseProxy"},
		"U-15": slices.Concat(slices.Collect(maps.Values(errorRows()))...),
		"U-18": {"TestE2EStopEndsAHangingCallAndTheSessionGoesOn"},
		"U-19": {clients + "TestMergeKeepsAllElseOfEveryClientsFile", clients + "TestDeepLinksDecodeToTheServer", clients + "TestPastes"},
		"U-30": {"TestE2EStrangerFindsTheBrokenServerAndCallsATool"},
	}
}

// errorRows maps the rows of the table of errors to the tests that provoke them.
func errorRows() map[string][]string {
	const (
		box       = "shared/box:"
		provision = "shared/box/provision:"
		local     = "infra/local:"
		front     = "shared/front:"
	)
	return map[string][]string{
		"program missing":                    {"TestE2EReasonOfAFailedStartIsTheSameEverywhere"},
		"no Node":                            {box + "TestCommandThatCannotRunFailsAtOnce"},
		"package unknown":                    {"TestE2EReasonOfAFailedStartIsTheSameEverywhere", provision + "TestPackageThatTheIndexDoesNotHaveIsNamed"},
		"script not found":                   {"TestE2EReasonOfAFailedStartIsTheSameEverywhere", "TestE2EFilesBesideTheServersFileAreFound"},
		"exits before the handshake":         {"TestE2EReasonOfAFailedStartIsTheSameEverywhere", "TestE2EBrokenServers"},
		"hangs in the handshake":             {"TestE2EReasonOfAFailedStartIsTheSameEverywhere"},
		"variable missing":                   {"TestE2EServerThatCannotBeHostedCostsItselfOnly", "shared/catalog:TestServerThatIsWrongCostsItselfOnly", "TestE2EStrangerFindsTheBrokenServerAndCallsATool"},
		"port in use":                        {local + "TestPortThatIsInUseIsSaidWithItsHolder"},
		"wrong Host":                         {"TestE2EBehindAReverseProxy"},
		"wrong server":                       {front + "TestUnknownServerIsAnsweredWithTheNamesThatTheCallerMayUse"},
		"cache or data folder not writable":  {provision + "TestCacheIsWhereItCanBeWritten", "infra/local/datafolder:TestAFolderThatCannotBeWrittenSaysWhatToDo"},
		"disk full":                          {"shared/sqlitestore:TestAStoreWithoutRoomSaysSoBeforeItFails", provision + "TestInstallThatFillsTheDiskSaysWhich", local + "TestALogThatCannotBeWrittenIsSaidOnceAMinute"},
		"file broken while running":          {"TestE2EReloadOfABrokenFile"},
		"browser at the address of a server": {front + "TestABrowserGetsAPage"},
		"unknown key of the file":            {"shared/catalog:TestWarningsNameThePlace"},
	}
}

// TestEveryRowHasATest fails for a row that names a test that does not exist.
func TestEveryRowHasATest(t *testing.T) {
	sources := map[string]string{}
	for _, table := range []map[string][]string{rows(), errorRows()} {
		for row, names := range table {
			for _, name := range names {
				folder, test, ok := strings.Cut(name, ":")
				if !ok {
					folder, test = "infra/dormouse", name
				}
				if sources[folder] == "" {
					sources[folder] = testsOf(t, folder)
				}
				if !strings.Contains(sources[folder], "func "+test+"(") {
					t.Errorf("%s: there is no %s in %s", row, test, folder)
				}
			}
		}
	}
}

// testsOf returns the text of all tests of a folder.
func testsOf(t *testing.T, folder string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(folder), "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}
