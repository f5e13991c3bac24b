package main

import (
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/commontest"
)

// rows maps the acceptance rows of the terminal, the commands and the servers file to the
// tests that hold them, in this package or in the folder before the colon.
func rows() map[string][]string {
	const (
		display = "infra/local/display:"
		local   = "infra/local:"
		catalog = "shared/catalog:"
		clients = "infra/internal/clientfile:"
		console = "infra/proof/console:TestConsoleInARealBrowser"
		stack   = "functions/wiring/webconsole:"
		api     = "shared/api:"
		file    = "infra/internal/serversfile:"
		history = "infra/local/history:"
		costs   = "shared/relay:"
		overURL = "TestE2ECommandsWorkOverAURLWithTheKeyOfAnOperator"
	)
	return map[string][]string{
		"U-1":  {"TestE2EServerIsAddedHostedAndCalled"},
		"U-2":  {"TestE2EAddedServerAnswersItsFirstClientsWithoutAProcess", "TestE2EAddedServerAnswersAllTenantsWithoutAProcess"},
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
		"U-15": nil, // those of errorRows
		"U-16": {overURL, "TestE2EEveryCommandWorksWithAStackOrSaysWhyNot", "TestE2EStopEndsAHangingCallAndTheSessionGoesOn", "TestE2EStopWaitsForCallsInFlight", "TestE2ELogsFollowsThroughAStop", api + "TestKeysAreMadeRotatedAndRevoked", api + "TestBillIsSummedByWhatIsAskedFor"},
		"U-17": {"TestPsOfTwentyServersAndFiftyPeopleFitsOnAScreen", "TestYesterdaysFailuresOfAToolAreOneCommand", "TestE2ECallsAreListedAndCounted", history + "TestHistoryAnswersWhoCalledWhatAndWhatFailed", console},
		"U-18": {"TestE2EStopEndsAHangingCallAndTheSessionGoesOn"},
		"U-19": {clients + "TestMergeKeepsAllElseOfEveryClientsFile", clients + "TestDeepLinksDecodeToTheServer", clients + "TestPastes"},
		"U-20": {console},
		"U-21": {console, "infra/proof/console:TestConsoleOfAStackInARealBrowser", stack + "TestAnHourOfLookingCostsLessThanACent", stack + "TestAConsoleThatNobodyLooksAtCostsNothing"},
		"U-22": {console, "shared/console:TestLinkWorksOnceAndBecomesACookie", "shared/console:TestKeyMakesALinkThatSignsInOnceWithItsRights", "shared/console:TestPagesOfOthersAreRefused", stack + "TestAStackLetsInByALinkOnce", stack + "TestVisitorsOfAStackSeeAndTouchTheirTenantOnly", stack + "TestAStackRefusesPagesOfOthers", stack + "TestUsersOfAProviderHaveTheirRoleAtTheConsole", "infra/proof/console:TestConsoleSignInInARealBrowser", "shared/broker:TestUsersSignInToTheConsoleWithTheRoleThatTheRulesGive", "shared/broker:TestOnlyTheConsoleGetsTokensForTheConsole", "shared/broker:TestTheRoleOfAUserEndsWithItsGrantAndWithTheRule", api + "TestViewerSeesNothingThatAServerWrote", api + "TestCallerSeesAndTouchesNothingOfOthers"},
		"U-23": {history + "TestKilledMachineLosesTheLastMinuteOfItsHistoryAtMost", history + "TestADayIsCountedByMinutes", history + "TestTheFileIsWrittenOnceAMinuteAndOnlyIfSomethingHappened", history + "TestOldCallsAndCountsAreDeleted", history + "TestHistoryKeepsTheNewestCalls", history + "TestARecordDoesNotWaitForASave", costs + "TestCostOnSQLite", costs + "TestCostOnDynamoDB", costs + "TestCostsInTheDocumentsAreThose"},
		"U-25": {"TestE2ECallsAreListedAndCounted", "TestE2EMetricsNeedAKeyThatMaySee", history + "TestMetricsCountCallsByPrincipalAndTool", "TestE2EACollectorShowsTheCallsOfATestRun"},
		"U-26": {"TestE2EBlocksOfTheDocumentsRun", "TestTheCLIPageHasEveryCommandAndFlag", "shared:TestServersFilesInTheDocumentsAreRead", "shared:TestEveryErrorHasItsRow", "shared:TestEveryCodeHasItsAnchor", "shared:TestLinksInTheDocumentsLeadSomewhere", "shared:TestPagesThatAreReadAsAWholeAreShort", "shared:TestPagesOfTheDocumentsAreShort", "shared:TestBlocksOfCommandsAreRunOrSayWhyNot"},
		"U-27": {"shared:TestCIVetsAndBuildsForMacOS"},
		"U-28": {"TestE2EServiceWithoutAHomeKeepsItsSessions", "infra/image:TestAContainerHostsAServerAndItsSessionsSurvive", "infra/image:TestTheImageOfOneMachineRunsDormouseForAUserWithoutAHome", "TestE2EIdleServiceEndsAndTheNextConnectionStartsIt"},
		"U-29": {"shared:TestUnitTestsBeginBeforeTheLinterIsBuilt", "shared:TestTheChangelogNamesCommitsOfTheHistory", "TestVersionIsThatOfTheBuild"},
		"U-30": {"TestE2EStrangerFindsTheBrokenServerAndCallsATool"},
	}
}

// places are where the reason of a failure can be read: the client's answer, the terminal of
// dormouse run, and what three commands print. Each field names the tests that look there.
// A field that begins with "none: " says why the reason cannot be read there.
type places struct{ answer, terminal, list, ps, logs string }

// all returns the tests.
func (p places) all() (names []string) {
	for _, place := range []string{p.answer, p.terminal, p.list, p.ps, p.logs} {
		if !strings.HasPrefix(place, "none: ") {
			names = append(names, strings.Fields(place)...)
		}
	}
	return names
}

// errorRows maps the rows of the table of errors to the tests that provoke the errors.
// For each place where the reason can be read, it names the tests that look there.
func errorRows() map[string]places {
	const (
		start     = "TestE2EReasonOfAFailedStartIsTheSameEverywhere"
		file      = "TestE2EReasonsOfTheFileAreTheSameEverywhere"
		box       = " shared/box:"
		provision = " shared/box/provision:"
		local     = " infra/local:"
		front     = " shared/front:"

		asleep  = "none: nothing runs of it"
		notUp   = "none: dormouse run does not start"
		noOne   = "none: it is about a caller, and not about a server"
		noBody  = "none: the servers of the file before are served"
		notHere = "none: it is about the file, and not about what runs"
	)
	everywhere := places{start, start, start, start, start}
	with := func(p places, answer string) places {
		p.answer += answer
		return p
	}
	return map[string]places{
		"program missing":                    everywhere,
		"no Node":                            with(everywhere, box+"TestCommandThatCannotRunFailsAtOnce"),
		"package unknown":                    with(everywhere, provision+"TestPackageThatTheIndexDoesNotHaveIsNamed"),
		"script not found":                   with(everywhere, " TestE2EFilesBesideTheServersFileAreFound"),
		"exits before the handshake":         with(everywhere, " TestE2EBrokenServers TestE2EFailedStartIsListedWhileItsBoxSleeps"),
		"hangs in the handshake":             everywhere,
		"variable missing":                   {file + " TestE2EServerThatCannotBeHostedCostsItselfOnly", file, file, asleep, file},
		"port in use":                        {notUp, local + "TestPortThatIsInUseIsSaidWithItsHolder", notUp, notUp, notUp},
		"wrong Host":                         {"TestE2EBehindAReverseProxy", "TestE2EBehindAReverseProxy", noOne, noOne, noOne},
		"wrong server":                       {file + front + "TestUnknownServerIsAnsweredWithTheNamesThatTheCallerMayUse", noOne, noOne, noOne, file},
		"cache or data folder not writable":  {notUp, provision + "TestCacheIsWhereItCanBeWritten infra/local/datafolder:TestAFolderThatCannotBeWrittenSaysWhatToDo", notUp, notUp, notUp},
		"disk full":                          {"shared/sqlitestore:TestAStoreWithoutRoomSaysSoBeforeItFails" + provision + "TestInstallThatFillsTheDiskSaysWhich", local + "TestALogThatCannotBeWrittenIsSaidOnceAMinute", noOne, noOne, noOne},
		"file broken while running":          {noBody, file + " TestE2EReloadOfABrokenFile", file, notHere, notHere},
		"browser at the address of a server": {front + "TestABrowserGetsAPage", noOne, noOne, noOne, noOne},
		"unknown key of the file":            {noBody, file, file + " shared/catalog:TestWarningsNameThePlace", notHere, notHere},
	}
}

func TestEveryRowHasATest(t *testing.T) {
	all := rows()
	for row, p := range errorRows() {
		for place, says := range map[string]string{"answer": p.answer, "terminal": p.terminal, "list": p.list, "ps": p.ps, "logs": p.logs} {
			if says == "" {
				t.Errorf("%s: it is not said whether %s has the reason", row, place)
			}
		}
		all["error: "+row] = p.all()
		all["U-15"] = append(all["U-15"], p.all()...)
	}
	commontest.RowsHaveTests(t, "../..", "infra/dormouse", all)
}
